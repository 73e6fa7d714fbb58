# shellcheck shell=bash
# What Open MPI is told by the environment: to run as root, on one host over loopback and shared
# memory, with more processes than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_btl=self,vader OMPI_MCA_rmaps_base_oversubscribe=1
