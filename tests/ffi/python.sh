# Runs the example of the Python package.
. "$(dirname "$0")/common.sh"

# The system's interpreter is where the distribution puts NumPy.
for python in /usr/bin/python3 python3; do
    if "$python" -c "import numpy" 2>/dev/null; then
        PYTHONPATH=$SOURCE/bindings/python "$python" "$SOURCE/examples/minimal.py" >"$work/python.txt"
        same_numbers "$work/python.txt"
        exit
    fi
done
echo "skipped: no python3 with NumPy"
exit 77
