"""Measures faiss-cpu and usearch on the keys and queries of `engram bench memory`, which starts this script.

Usage: baselines.py KEYS QUERIES WIDTH THREADS [hnsw]. KEYS and QUERIES are files of f32 rows.
The first printed line lists the available indexes. Then each line `INDEX K` on standard input runs
a search and prints `SECONDS RECALL`. The recall is relative to an exact search with NumPy.
"""
import json
import sys
import time

import numpy as np

width, threads = int(sys.argv[3]), int(sys.argv[4])
keys, queries = (np.fromfile(path, "<f4").reshape(-1, width) for path in sys.argv[1:3])
# `search` has a function from `k` to the ids of each index, and `about` the versions and build times.
search, about = {}, {}

try:
    import faiss
    faiss.omp_set_num_threads(threads)
    flat = faiss.IndexFlatIP(width)
    flat.add(keys)
    search["faiss-flat"] = lambda k: flat.search(queries, k)[1]
    about["faiss"] = faiss.__version__
    if "hnsw" in sys.argv[5:]:
        graph = faiss.IndexHNSWFlat(width, 24, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction, graph.hnsw.efSearch = 200, 96
        start = time.perf_counter()
        graph.add(keys)
        about["faiss-hnsw build seconds"] = round(time.perf_counter() - start, 1)
        search["faiss-hnsw"] = lambda k: graph.search(queries, k)[1]
except ImportError:
    pass
try:
    import usearch
    from usearch.index import Index, search as brute_force
    search["usearch-exact"] = lambda k: brute_force(
        keys, queries, k, metric="ip", exact=True, threads=threads).keys
    about["usearch"] = usearch.__version__
    if "hnsw" in sys.argv[5:]:
        index = Index(ndim=width, metric="ip", connectivity=24, expansion_add=200, expansion_search=96)
        start = time.perf_counter()
        index.add(np.arange(len(keys)), keys, threads=threads)
        about["usearch-hnsw build seconds"] = round(time.perf_counter() - start, 1)
        search["usearch-hnsw"] = lambda k: index.search(queries, k, threads=threads).keys
except ImportError:
    pass

print(json.dumps({"indexes": list(search), "about": about}), flush=True)
exact = {}
for line in sys.stdin:
    name, k = line.split()
    k = int(k)
    start = time.perf_counter()
    ids = search[name](k)
    seconds = time.perf_counter() - start
    if k not in exact:
        exact[k] = np.argpartition(-(queries @ keys.T), k, axis=1)[:, :k]
    # usearch drops the first dimension of the result of a single query.
    ids = np.reshape(ids, (len(queries), k))
    recall = np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(ids, exact[k])])
    print(seconds, recall, flush=True)
