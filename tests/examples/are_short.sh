# are_short.sh FOLDER: an example is read at one go, has a line in the table, and is built by the project that is installed with it.
set -euo pipefail

cd "$1"
count=0
for program in *.c *.cc; do
    lines=$(wc -l <"$program")
    [ "$lines" -le 120 ] || { echo "$program has $lines lines, at most 120"; exit 1; }
    grep -qF "($program)" README.md || { echo "README.md does not name $program"; exit 1; }
    grep -qE "\b${program%.*}\b" CMakeLists.txt || { echo "CMakeLists.txt does not build $program"; exit 1; }
    count=$((count + 1))
done
[ "$count" -ge 9 ]
echo "$count programs"
