"""Measures the processor time of faiss IndexFlatIP with one thread, as benches/exact.rs does for Engram.

Usage: OPENBLAS_NUM_THREADS=1 OPENBLAS_CORETYPE=SkylakeX exact_faiss.py ROWS WIDTH ROUNDS. OPENBLAS_CORETYPE selects the
instructions of the matrix products: the OpenBLAS of faiss-cpu 1.15.1 does not know recent Intel processors, and uses
SSE on them. For AVX2: OPENBLAS_CORETYPE=Haswell FAISS_OPT_LEVEL=avx2.
"""
import sys
import time

import faiss
import numpy as np

rows, width, rounds = map(int, sys.argv[1:])
random = np.random.default_rng(0)
keys, queries = (random.standard_normal((count, width), dtype=np.float32) for count in (rows, 1000))
for vectors in keys, queries:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
faiss.omp_set_num_threads(1)
index = faiss.IndexFlatIP(width)
index.add(keys)


def measure(searches, k):
    """Returns the smallest wall-clock and processor time in milliseconds."""
    times = []
    for search in searches:
        start, processor = time.perf_counter(), time.process_time()
        index.search(search, k)
        times.append((time.perf_counter() - start, time.process_time() - processor))
    return [1000 * min(column) for column in zip(*times)]


for k in 10, 100:
    print(f"k {k}, 1000 queries: %.0f ms, processor %.0f ms" % tuple(measure([queries] * rounds, k)))
    print(f"k {k}, 1 query: %.2f ms, processor %.2f ms" % tuple(measure(queries[:40, None], k)))
