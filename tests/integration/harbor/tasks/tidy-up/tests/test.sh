#!/bin/bash
letters=0; tidy=0
[ "$(find letters -type f 2>/dev/null | wc -l)" = 2 ] && letters=1
[ "$(find . -maxdepth 1 -type f | wc -l)" = 0 ] && tidy=1
[ "$letters$tidy" = 11 ] && both=1 || both=0
echo "{\"reward\": $both, \"letters\": $letters, \"tidy\": $tidy}" > /logs/verifier/reward.json
