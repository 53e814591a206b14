// A safetensors file in memory: the length of a JSON header in eight bytes, the header, the tensors. Nothing is copied.

export interface Stored {
  dtype: string;
  shape: number[];
  bytes: Uint8Array;
}

export interface File {
  tensors: Map<string, Stored>;
  metadata: Record<string, string>;
}

export const SIZES: Record<string, number> = { F64: 8, F32: 4, F16: 2, BF16: 2, I64: 8, I32: 4, I16: 2, I8: 1, U8: 1, BOOL: 1 };

export function parse(buffer: ArrayBuffer): File {
  if (buffer.byteLength < 8) throw new RangeError("safetensors: no header length");
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  if (length > buffer.byteLength - 8) throw new RangeError(`safetensors: a header of ${length} bytes in ${buffer.byteLength}`);
  const head: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(buffer, 8, length)));
  const { __metadata__: metadata = {}, ...entries } = head as Record<string, Record<string, unknown>>;
  const tensors = new Map<string, Stored>();
  for (const [name, entry] of Object.entries(entries)) {
    const { dtype, shape, data_offsets: span } = entry as { dtype: string; shape: number[]; data_offsets: [number, number] };
    const size = (SIZES[dtype] ?? NaN) * shape.reduce((n, axis) => n * axis, 1);
    if (span[1] - span[0] !== size || 8 + length + span[1] > buffer.byteLength)
      throw new RangeError(`safetensors: ${name} has ${span[1] - span[0]} bytes, ${dtype} ${shape.join("×")} needs ${size}`);
    tensors.set(name, { dtype, shape, bytes: new Uint8Array(buffer, 8 + length + span[0], size) });
  }
  return { tensors, metadata: metadata as Record<string, string> };
}
