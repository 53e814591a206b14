// What was asked for cannot be had; the message says why, to a person.
export class Refused extends Error {}
