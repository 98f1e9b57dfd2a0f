#!/bin/sh
# Lines of source: Python, CUDA and templates below src and tools, without generated files and assets.
cd "$(dirname "$0")/.." && git ls-files src tools | grep -E '\.(py|cu|cuh|j2)$' | tr '\n' '\0' | xargs -0 cat | wc -l
