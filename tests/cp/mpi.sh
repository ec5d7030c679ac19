#!/usr/bin/env bash
# mpi.sh MPIRUN PROGRAM RANKS EXPECTED [ARGUMENT]…: the ranks' processes on this machine, however few its processors, end in time and with
# this status: 0, or "failure" for any other.
set -u
mpirun=$1 program=$2 ranks=$3 expected=$4
shift 4
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_plm=isolated
timeout 40 "$mpirun" -n "$ranks" "$program" "$@"
status=$?
echo "status $status"
case "$expected" in
    failure) [ "$status" != 0 ] && [ "$status" != 124 ] ;;
    *) [ "$status" = "$expected" ] ;;
esac
