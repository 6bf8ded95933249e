"""`mempo index` and `mempo serve-retriever`: a large corpus, indexed once and searched over HTTP."""

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .options import add_command

if TYPE_CHECKING:
    from ..tasks.search.corpora import Passage


def add_commands(commands: Any) -> None:
    """Adds `index` and `serve-retriever`."""
    index = add_command(
        commands,
        "index",
        run_index,
        "index a corpus on disk",
        "  mempo index psgs_w100.tsv.gz wiki-index\n  mempo index passages.jsonl my-index",
    )
    index.add_argument(
        "corpus", help=".jsonl (id, contents or title and text) or .tsv (id, text, title); .gz may follow"
    )
    index.add_argument("directory", help="where the index goes")

    serve = add_command(
        commands,
        "serve-retriever",
        run_serve,
        "serve an index in the wire format of search agents (POST /retrieve)",
        "  mempo serve-retriever wiki-index --port 8000\n"
        "  curl localhost:8000/retrieve -H 'content-type: application/json' "
        '-d \'{"queries": ["Alien"], "topk": 3, "return_scores": true}\'',
    )
    serve.add_argument("index", help="folder that mempo index wrote; a corpus file is indexed in memory")
    serve.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1; 0.0.0.0 for other machines")
    serve.add_argument("--port", type=int, default=8000, help="default: 8000")
    serve.add_argument("--max_top_k", type=int, default=100, help="most passages for each query; default: 100")
    serve.add_argument("--max_queries", type=int, default=256, help="most queries of a request; default: 256")
    serve.add_argument("--max_connections", type=int, default=1024, help="default: 1024; further ones get a 503")


def run_index(args: argparse.Namespace) -> None:
    """Builds an index and says how large it is."""
    from ..tasks.search.corpora import load_corpus
    from ..tasks.search.retrieval import BM25Retriever

    retriever = BM25Retriever.build(_counted(load_corpus(args.corpus)), show_progress=True)
    retriever.save(args.directory)
    size = sum(entry.stat().st_size for entry in os.scandir(args.directory))
    print(f"{args.directory}: {len(retriever):,} passages, {size / 2**20:,.1f} MiB")


def _counted(passages: Iterator["Passage"]) -> Iterator["Passage"]:
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} passages read"))
    with Progress(*columns) as progress:
        yield from progress.track(passages, total=None)


def run_serve(args: argparse.Namespace) -> None:
    """Serves until it is told to stop."""
    from ..tasks.search.retrieval import BM25Retriever
    from ..tasks.search.server import ServerLimits, make_server
    from ..tasks.task import open_retriever

    retriever = open_retriever(args.index)
    if not isinstance(retriever, BM25Retriever):
        raise ValueError(f"{args.index} is a server already. Give an index folder or a corpus file")
    limits = ServerLimits(queries=args.max_queries, top_k=args.max_top_k, connections=args.max_connections)
    server = make_server(retriever, args.host, args.port, limits)
    print(f"{len(retriever):,} passages on http://{args.host}:{args.port}/retrieve", flush=True)
    server.run()
