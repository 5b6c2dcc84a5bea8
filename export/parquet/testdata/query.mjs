// Runs the queries of the command line by DuckDB, and prints the rows of each as a line of JSON.
import { DuckDBInstance } from '@duckdb/node-api';

const connection = await (await DuckDBInstance.create(':memory:')).connect();
for (const query of process.argv.slice(2)) {
  const reader = await connection.runAndReadAll(query);
  console.log(JSON.stringify(reader.getRowObjectsJson()));
}
