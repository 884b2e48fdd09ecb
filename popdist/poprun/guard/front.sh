# What mpirun starts for each instance of a job on one machine, in place of its program. The guard
# of all instances starts the program with this process's environment (host.py says how). This
# process passes mpirun's signals on, and ends with the program's exit code. A shell starts ten
# times faster than Python.
# A pipe that is open both ways can be opened at once; one way alone would wait for ever for a guard
# that was killed before.
exec 5<>"$POPRUN_FRONT/calls" 6<>"$POPRUN_FRONT/code.$OMPI_COMM_WORLD_RANK"
exec 3>"$POPRUN_FRONT/calls" 4<"$POPRUN_FRONT/code.$OMPI_COMM_WORLD_RANK" 5>&- 6>&-
heard=
for name in HUP INT USR1 USR2 TERM; do
    trap "heard=1; echo $$ $name >&3" $name
done
echo "$$ START $OMPI_COMM_WORLD_RANK" >&3
while :; do
    read -r code <&4 && exit "$code"
    [ "$heard" ] || exit 137 # the guard was killed
    heard=
done
