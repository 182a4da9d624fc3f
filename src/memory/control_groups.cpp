#include "memory/control_groups.h"

#include <fstream>
#include <sstream>
#include <string>

namespace vlmtrain::memory {

namespace {

/// In a container the path may be that of the host, which is not seen here; the container's own group is the mount.
void add_groups(std::vector<ControlGroupFolder>& groups, const std::filesystem::path& mount,
                const std::filesystem::path& path, bool is_v2) {
  auto folder = mount;
  groups.push_back({folder, is_v2});
  for (const auto& name : path) {
    folder /= name;
    groups.push_back({folder, is_v2});
  }
}

}  // namespace

std::vector<ControlGroupFolder> control_groups(const std::filesystem::path& root, std::string_view controller) {
  // Of lines of /proc/self/cgroup (man cgroups): `0::/path` in version 2, `4:cpu,memory:/path` in version 1.
  std::vector<ControlGroupFolder> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto path = std::filesystem::path(line.substr(second + 1)).relative_path();
    if (line.starts_with("0::")) add_groups(groups, root / "sys/fs/cgroup", path, /*unified=*/true);
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    for (std::string name; std::getline(controllers, name, ',');) {
      if (name == controller) add_groups(groups, root / "sys/fs/cgroup" / name, path, /*unified=*/false);
    }
  }
  return groups;
}

}  // namespace vlmtrain::memory
