# are_listed.sh FOLDER: an example has a line in the table, and is built by the project that is installed with it.
set -euo pipefail

cd "$1"
count=0
for program in *.c *.cc; do
    grep -qF "($program)" README.md || { echo "README.md does not name $program"; exit 1; }
    grep -qE "\b${program%.*}\b" CMakeLists.txt || { echo "CMakeLists.txt does not build $program"; exit 1; }
    count=$((count + 1))
done
[ "$count" -ge 9 ]
echo "$count programs"
