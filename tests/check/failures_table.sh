#!/bin/sh
# docs/failures.md is true: it lists ids 1 to 92, every test and file that it names exists, and every test with an id is in it.
# Usage: failures_table.sh TABLE TESTS
table=$1 tests=$2 wrong=0
fault() { echo "$1"; wrong=1; }
for n in $(seq -w 1 92); do
    grep -Eq "^\| .*F$n\b.*\|" "$table" || fault "F$n is not in $table"
done
for name in $(grep -oE '`[A-Za-z]+\.[A-Za-z0-9_]+`' "$table" | tr -d '`' | sort -u); do
    grep -rqE "TEST(_F|_P)?\(${name%.*}, ${name#*.}\)|def ${name#*.}\(self" "$tests" || fault "$table names $name, which is no test"
done
for path in $(grep -oE '`tests/[a-z0-9_/.]+`' "$table" | tr -d '`' | sort -u); do
    [ -e "$tests/${path#tests/}" ] || fault "$table names $path, which is no file"
done
for id in $(grep -rhoE 'TEST(_P)?\([A-Za-z]+, (F[0-9]+_)+' "$tests" | grep -oE 'F[0-9]+' | sort -u); do
    grep -q "$id" "$table" || fault "$id has a test and is not in $table"
done
exit $wrong
