"""Measures the graphs of faiss and usearch on the keys and queries that benches/graph.rs wrote.

Usage: graph_peers.py FOLDER WIDTH THREADS [faiss M EF_CONSTRUCTION | usearch M EF_CONSTRUCTION TYPE] ... TYPE is the
number type of the keys in usearch: f32, bf16 or i8. Prints the build time, then the recall and the queries a second
for several values of ef_search. All times are also given as processor time, for busy machines.
"""
import sys
import time

import faiss
import numpy as np
from usearch.index import Index

K, ROUNDS = 10, 3
EF_SEARCH = 20, 40, 64, 96, 128, 192, 256, 384, 512, 768
folder, width, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
keys, queries = (np.fromfile(f"{folder}/{name}.f32", "<f4").reshape(-1, width) for name in ("keys", "queries"))
exact = np.fromfile(f"{folder}/exact.i64", "<i8").reshape(-1, K)
faiss.omp_set_num_threads(threads)


def timed(run):
    """Returns the result, the wall-clock seconds and the processor seconds of all threads."""
    start, processor = time.perf_counter(), time.process_time()
    result = run()
    return result, time.perf_counter() - start, time.process_time() - processor


def measure(name, build, search):
    """Prints the build time, and the recall and speed of `search(ef_search)`."""
    _, seconds, processor = timed(build)
    print(f"{len(keys)} x {width}, {name}: built in {seconds:.1f} s, processor {processor:.1f} s", flush=True)
    for ef_search in EF_SEARCH:
        rounds = [timed(lambda: search(ef_search)) for _ in range(ROUNDS)]
        recall = np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(rounds[0][0], exact)])
        best, processor = (len(queries) / min(column) for column in list(zip(*rounds))[1:])
        print(f"ef_search {ef_search}: recall@{K} {recall:.4f}, {best:.0f} queries/s, {processor:.0f} queries per "
              "processor second", flush=True)


arguments = iter(sys.argv[4:])
for peer in arguments:
    connections, ef_construction = int(next(arguments)), int(next(arguments))
    if peer == "faiss":
        graph = faiss.IndexHNSWFlat(width, connections, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = ef_construction

        def search(ef_search):
            graph.hnsw.efSearch = ef_search
            return graph.search(queries, K)[1]

        measure(f"faiss {faiss.__version__} M {connections} ef {ef_construction}", lambda: graph.add(keys), search)
    else:
        dtype = next(arguments)
        index = Index(ndim=width, metric="ip", dtype=dtype, connectivity=connections, expansion_add=ef_construction)

        def search(ef_search):
            index.expansion_search = ef_search
            return index.search(queries, K, threads=threads).keys

        measure(f"usearch M {connections} ef {ef_construction} {dtype}",
                lambda: index.add(np.arange(len(keys)), keys, threads=threads), search)
