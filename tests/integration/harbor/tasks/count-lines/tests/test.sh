#!/bin/bash
# Writes the share of cases that are right.

right=0
for number in $(seq "$CASES"); do
  if [ "$(./count.sh "/tests/case$number.txt")" = "$number" ]; then right=$((right + 1)); else echo "case $number is wrong"; fi
done
awk "BEGIN { print $right / $CASES }" > /logs/verifier/reward.txt
