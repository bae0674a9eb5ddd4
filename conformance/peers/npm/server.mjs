// A server of the official SDK for JavaScript, for scenarios: `node server.mjs FOLDER stdio|http`, where FOLDER has the
// installed packages. Over HTTP its first line on standard output is its address, and it ends with its standard input.
// It has no sessions: a server for each request, as the SDK's own example of that way does it.

import { createServer } from "node:http";
import { createRequire } from "node:module";

const [folder, way] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js");
const { StreamableHTTPServerTransport } = require("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { z } = require("zod");

const texts = (text) => ({ content: [{ type: "text", text }] });

function serving() {
  const server = new McpServer({ name: "npm-peer", version: "1.0.0" });
  const text = { text: z.string() };
  server.registerTool("echo", { description: "Gives the text.", inputSchema: text }, ({ text }) => texts(text));
  server.registerTool(
    "structured",
    { description: "Gives a structured result.", outputSchema: { city: z.string(), degrees: z.number() } },
    () => ({ structuredContent: { city: "Bern", degrees: -3.5 }, ...texts("-3.5 in Bern") }),
  );
  server.registerTool("environment", { description: "Tells how it was started." }, () =>
    texts(JSON.stringify({ cwd: process.cwd(), env: process.env, argv: process.argv })),
  );
  return server;
}

async function answer(request, response) {
  if (request.method !== "POST") {
    response.writeHead(405).end();
    return;
  }
  const [server, transport] = [serving(), new StreamableHTTPServerTransport({ sessionIdGenerator: undefined })];
  response.on("close", () => {
    transport.close();
    server.close();
  });
  await server.connect(transport);
  await transport.handleRequest(request, response);
}

if (way === "stdio") {
  await serving().connect(new StdioServerTransport());
} else {
  const listening = createServer(answer).listen(0, "127.0.0.1", () => {
    console.log(`http://127.0.0.1:${listening.address().port}/mcp`);
  });
  process.stdin.on("end", () => process.exit(0)).resume();
}
