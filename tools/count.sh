#!/bin/sh
# Count lines of source and bytes a line: code of src and tools, templates of charts; no generated or minified files.
cd "$(dirname "$0")/.." && git ls-files -z src tools 'charts/opd-lib/templates/*' ':!*.min.*' |
  grep -zE '\.(py|cu|cuh|j2|js|css|tpl|yaml|txt)$' | xargs -0 cat | wc -lc |
  awk '{for (n = $1; length(n) > 3; n = substr(n, 1, length(n) - 3)) tail = "," substr(n, length(n) - 2) tail
        printf "%s lines, %.0f bytes a line\n", n tail, $2 / $1}'
