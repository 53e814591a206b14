// How rotary positions turned one query and one key of a head: every pair of channels, the query's number first, the key's second.

type Two = [number, number];
export interface Pair { channels: Two; frequency: number; angles: Two; before: [Two, Two]; after: [Two, Two]; turn: [Two, Two]; product: number }
export interface Turns { part: string; head: number; query: number; key: number; theta: number; scaling: string | null; pairs: Pair[]; total: number }
