// Rows of a Parquet file, one row group after the other, as objects.
import { decompress } from "fzstd";
import { parquetMetadataAsync, parquetReadObjects, parquetSchema } from "hyparquet";

const plain = (value) => (typeof value === "bigint" ? Number(value) : value);

/**
 * @param {ArrayBuffer} buffer the whole file
 * @param {Set<string>} wanted columns that suffice where the file has a column `logp`
 */
export async function* rows(buffer, wanted) {
  const file = { byteLength: buffer.byteLength, slice: async (start, end) => buffer.slice(start, end) };
  const metadata = await parquetMetadataAsync(file);
  const names = parquetSchema(metadata).children.map((child) => child.element.name);
  // Ids are read where there are no texts.
  const needed = (name) => wanted.has(name) && !(name === "token_id" && names.includes("token"));
  const columns = names.includes("logp") ? names.filter(needed) : names;
  let rowStart = 0;
  for (const group of metadata.row_groups) {
    const rowEnd = rowStart + Number(group.num_rows);
    const found = await parquetReadObjects({ file, metadata, columns, rowStart, rowEnd, compressors: { ZSTD: (input) => decompress(input) } });
    for (const row of found) for (const name of columns) row[name] = plain(row[name]);
    yield found;
    rowStart = rowEnd;
  }
}
