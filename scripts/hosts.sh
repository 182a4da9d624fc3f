# Simulated hosts, for scripts that test several machines on one. Each is a network namespace on one bridge with its own address,
# name and /etc/hosts; processes and files are the machine's. Source it in bash, as root; needs iproute2 and util-linux.
#
#   make_hosts 2                  host1 and host2; this machine is at $(address_of 0)
#   on_host 1 COMMAND …           runs it there; a background process keeps its process id
#   cut_off 2; join 2             takes its link down and up
#   remove_hosts
# shellcheck shell=bash

# Not `ip netns exec`: its /sys has no control groups, which slurmd needs.
hosts_prefix=vlm$$
hosts_count=0

address_of() { echo "10.213.$((hosts_prefix_number % 250)).$(($1 + 1))"; }
hosts_prefix_number=$$

make_hosts() {  # how many
  local number
  hosts_file=$(mktemp)
  echo "127.0.0.1 localhost" >"$hosts_file"
  for ((number = 1; number <= $1; ++number)); do echo "$(address_of "$number") host$number" >>"$hosts_file"; done
  ip link add "$hosts_prefix" type bridge
  ip address add "$(address_of 0)/24" dev "$hosts_prefix"
  ip link set "$hosts_prefix" up
  for ((number = 1; number <= $1; ++number)); do
    hosts_count=$number
    ip netns add "$hosts_prefix-$number"
    ip link add "$hosts_prefix-$number" type veth peer name wire0 netns "$hosts_prefix-$number"
    ip link set "$hosts_prefix-$number" master "$hosts_prefix" up
    ip -netns "$hosts_prefix-$number" address add "$(address_of "$number")/24" dev wire0
    ip -netns "$hosts_prefix-$number" link set wire0 up
    ip -netns "$hosts_prefix-$number" link set lo up
  done
}

on_host() {  # number, command …
  local number=$1
  shift
  # shellcheck disable=SC2016  # the inner shell's variables
  exec_or_run nsenter --net="/run/netns/$hosts_prefix-$number" unshare --uts --mount bash -c \
    'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"' bash "host$number" "$hosts_file" "$@"
}

# In the background, the subshell becomes the command, so that $! is its id.
exec_or_run() { if [[ $BASHPID != "$$" ]]; then exec "$@"; else "$@"; fi; }

cut_off() { ip link set "$hosts_prefix-$1" down; }
join() { ip link set "$hosts_prefix-$1" up; }

remove_hosts() {
  local number
  for ((number = 1; number <= hosts_count; ++number)); do ip netns del "$hosts_prefix-$number" 2>/dev/null; done
  ip link del "$hosts_prefix" 2>/dev/null
  rm -f "${hosts_file:-}"
}
