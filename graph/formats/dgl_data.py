"""DGL's node-classification datasets through DGL's own loaders and download cache."""

import contextlib
import io
import os
import warnings
from pathlib import Path
from typing import Any

from halocast.base.errors import InputError
from halocast.graph.graph import Graph

DGL_DATASETS = {
    "amazon-computers": "AmazonCoBuyComputerDataset",
    "amazon-photo": "AmazonCoBuyPhotoDataset",
    "chameleon": "ChameleonDataset",
    "citeseer": "CiteseerGraphDataset",
    "coauthor-cs": "CoauthorCSDataset",
    "coauthor-physics": "CoauthorPhysicsDataset",
    "cora": "CoraGraphDataset",
    "flickr": "FlickrDataset",
    "pubmed": "PubmedGraphDataset",
    "reddit": "RedditDataset",
    "squirrel": "SquirrelDataset",
    "yelp": "YelpDataset",
}


def load_dgl(name: str, cache: Path | None = None) -> Graph:
    """Load one of DGL_DATASETS; `cache` is the directory DGL keeps raw files in (default: DGL's own)."""
    dataset = _open(name, cache)
    return Graph.from_dgl(dataset[0], name=name, num_classes=int(dataset.num_classes))


def _open(name: str, cache: Path | None) -> Any:
    place = cache or Path(os.environ.get("DGL_DOWNLOAD_DIR", Path.home() / ".dgl"))
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dgl 1.1.3 predates several deprecations of numpy and torch
        try:
            import dgl.data
        except ImportError as error:
            raise InputError(f"dataset {name!r} needs dgl, which is not usable here ({error}); give a path") from None
        options = {} if cache is None else {"raw_dir": str(cache)}
        try:
            return getattr(dgl.data, DGL_DATASETS[name])(verbose=False, **options)
        except Exception as error:  # anything: requests, zip, json and dgl's own errors all end here
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"dataset {name!r} is not usable from dgl's cache {place} and cannot be downloaded: {reason}; "
                f"give a path, or put {name}.npz into $HALOCAST_DATA"
            ) from None
