"""A stand-in of the Hugging Face hub's HTTP API, as far as its client calls it to commit files."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

from many_clients import Server

#: The token that may write to repositories of `OWNER`.
TOKEN, OWNER = "hf_" + "x" * 20, "ada"


class Hub:
    """Repositories in memory, behind a server of this machine.

    Attributes:
      private: whether a repository is private, by its name.
      files: bytes by name of the file, by name of the repository.
      calls: methods and paths of all requests.
    """

    def __init__(self) -> None:
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.stored: dict[str, bytes] = {}
        self.calls: list[str] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self._body())

    do_PUT = do_POST

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, body: bytes) -> None:
        path = self.path.partition("?")[0]
        self.hub.calls.append(f"{self.command} {path}")
        stored = path.startswith("/store/")  # the address itself is the permission
        allowed = stored or self.headers.get("Authorization") == f"Bearer {TOKEN}"
        status, answer = self._done(path, body) if allowed else (401, {"error": "Invalid token."})
        content = json.dumps(answer).encode()
        self.send_response(status)
        if status >= 400:
            self.send_header("X-Error-Message", answer["error"])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _done(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        hub, parts = self.hub, path.strip("/").split("/")
        if parts[0] == "store":
            if hashlib.sha256(body).hexdigest() != parts[1]:
                return 400, {"error": "other bytes than announced"}
            hub.stored[parts[1]] = body
            return 200, {}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self._created(json.loads(body))
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2]).removesuffix(".git")
        if repo not in hub.files:
            return 404, {"error": "Repository not found"}
        if path.endswith("/objects/batch"):
            objects = json.loads(body)["objects"]
            actions = {one["oid"]: f"{hub.url}/store/{one['oid']}" for one in objects}
            return 200, {"transfer": "basic", "objects": [
                {**one, "actions": {"upload": {"href": actions[one["oid"]]}}} for one in objects
            ]}  # fmt: skip
        if "preupload" in parts:
            large = {True: "lfs", False: "regular"}
            return 200, {"files": [
                {"path": one["path"], "shouldIgnore": False,
                 "uploadMode": large[one["path"].endswith(".safetensors")]}
                for one in json.loads(body)["files"]
            ]}  # fmt: skip
        if "commit" in parts:
            self._commit(repo, body)
            return 200, {"commitUrl": f"{hub.url}/{repo}/commit/{'a' * 40}", "commitOid": "a" * 40,
                         "success": True}  # fmt: skip
        return 200, {"id": repo, "private": hub.private[repo], "siblings": [], "tags": [],
                     "sha": "a" * 40}  # fmt: skip

    def _created(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        owner, name = asked.get("organization", OWNER), asked["name"]
        repo, hub = f"{owner}/{name}", self.hub
        if owner != OWNER:
            return 403, {"error": f"You don't have the rights to create a model under {owner}"}
        if repo in hub.files:
            return 409, {"error": "exists", "url": f"{hub.url}/{repo}"}
        hub.files[repo] = {}
        hub.private[repo] = asked.get("private") or asked.get("visibility") == "private"
        return 200, {"url": f"{hub.url}/{repo}"}

    def _commit(self, repo: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.hub.files[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.hub.files[repo][value["path"]] = self.hub.stored[value["oid"]]
