# What mpirun starts for each instance of a job on one machine, in place of its program. The guard
# of all instances starts the program with this process's environment (host.py says how). This
# process passes mpirun's signals on, and ends with the program's exit code. A shell starts ten
# times faster than Python. The first argument is a Python for the case that the guard is killed.
# A pipe that is open both ways can be opened at once; one way alone would wait for ever for a guard
# that was killed before.
exec 5<>"$POPRUN_FRONT/calls" 6<>"$POPRUN_FRONT/code.$OMPI_COMM_WORLD_RANK"
exec 3>"$POPRUN_FRONT/calls" 4<"$POPRUN_FRONT/code.$OMPI_COMM_WORLD_RANK" 5>&- 6>&-
heard=
trap '' PIPE # a guard that was killed does not read
for name in HUP INT USR1 USR2 TERM; do
    trap "heard=1; echo $$ $name 2>/dev/null >&3" $name
done
echo "$$ START $OMPI_COMM_WORLD_RANK" 2>/dev/null >&3
while :; do
    read -r code <&4 && exit "$code"
    [ "$heard" ] || {
        # The guard was killed. If poprun was killed as well, nobody else ends the programs.
        "$1" -I -S -c '
import sys
sys.path.insert(0, sys.argv[1])
from popdist.poprun.guard.ending import stand_by
stand_by(sys.argv[2], int(sys.argv[3]))
' "${0%/*}/../../.." "$POPRUN_FRONT" "$PPID" </dev/null >/dev/null 2>&1 3>&- 4<&-
        exit 137
    }
    heard=
done
