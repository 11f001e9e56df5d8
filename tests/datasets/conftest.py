import gzip
import http.server
import importlib
import threading

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_image


def crops(side, step=97):
    """Pieces of the two photographs that come with scikit-learn."""
    return np.stack(
        [
            photo[top : top + side, left : left + side]
            for photo in map(load_sample_image, ("china.jpg", "flower.jpg"))
            for top in range(0, photo.shape[0] - side, step)
            for left in range(0, photo.shape[1] - side, step)
        ]
    )


@pytest.fixture(scope="session")
def photos():
    """Colour images of 32 x 32 pixels."""
    return crops(32)


@pytest.fixture(scope="session")
def odd_photos():
    """Colour images whose sides are no multiples of anything."""
    return crops(37, 131)[:, :, :35]


@pytest.fixture(scope="session")
def digits():
    """Grey images of 8 x 8 pixels."""
    return (load_digits().images[:300] * 255 / 16).astype(np.uint8)


def idx_bytes(array):
    """An idx file of this array, by the description of the format."""
    codes = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    head = bytes([0, 0, codes[kind], array.ndim])
    sides = b"".join(side.to_bytes(4, "big") for side in array.shape)
    return head + sides + array.astype(f">{kind}").tobytes()


@pytest.fixture(scope="session")
def write_idx():
    """Write an array as an idx file; with gzip if its name says so."""

    def write(path, array):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = idx_bytes(array)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path

    return write


@pytest.fixture(scope="session")
def vision():
    """torchvision.datasets; skipped where torchvision does not load with torch."""
    try:
        return importlib.import_module("torchvision.datasets")
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"torchvision does not load: {error}")


@pytest.fixture
def server(tmp_path):
    """Address of a web server for the folder of the test, on a port of its own."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=tmp_path)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()
