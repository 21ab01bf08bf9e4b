"""The HTTP side: POST a URL, GET a code."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from snip.codes import is_code
from snip.links import Links

LINKS = Links(Path("links.json"))


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        url = self.rfile.read(length).decode()
        self.send_response(201)
        self.end_headers()
        self.wfile.write(LINKS.add(url).encode())

    def do_GET(self) -> None:
        code = self.path.lstrip("/")
        url = LINKS.get(code) if is_code(code) else None
        self.send_response(404 if url is None else 302)
        if url is not None:
            self.send_header("Location", url)
        self.end_headers()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
