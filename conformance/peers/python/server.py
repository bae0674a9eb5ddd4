"""A server of the official SDK for Python, for scenarios: `python3 server.py stdio|http`.

Over HTTP its first line on standard output is its address, and it ends with its standard input. It has sessions.
"""

import json
import os
import socket
import sys
import threading

import uvicorn
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

server = MCPServer("python-peer", log_level="ERROR")


class Weather(BaseModel):
    city: str
    degrees: float


@server.tool()
def echo(text: str) -> str:
    """Gives the text."""
    return text


@server.tool()
def structured() -> Weather:
    """Gives a structured result."""
    return Weather(city="Bern", degrees=-3.5)


@server.tool(structured_output=False)
def environment() -> str:
    """Tells how it was started."""
    return json.dumps({"cwd": os.getcwd(), "env": dict(os.environ), "argv": sys.argv})


def end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=end_with_input, daemon=True).start()
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run(sockets=[listening])
