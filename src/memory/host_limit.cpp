#include "memory/host_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "vlmtrain/memory/host.h"

namespace vlmtrain::memory {

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// What Linux calls MemTotal.
int64_t machine_bytes(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::string key;
  int64_t kibibytes = 0;
  while (file >> key) {
    if (key == "MemTotal:" && file >> kibibytes) return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnlimited;
}

/// A number of bytes; `max`, and what cannot be read, is no limit.
int64_t limit_in(const std::filesystem::path& file) {
  int64_t bytes = 0;
  std::ifstream stream(file);
  return stream >> bytes ? bytes : kUnlimited;
}

struct ControlGroup {
  std::filesystem::path mount;  ///< where its hierarchy is seen
  std::filesystem::path path;   ///< in that hierarchy, relative
  const char* limit_file;
};

/// Of lines of /proc/self/cgroup (man cgroups): `0::/path` in version 2, `4:cpu,memory:/path` in version 1.
std::vector<ControlGroup> control_groups(const std::filesystem::path& root) {
  std::vector<ControlGroup> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto path = std::filesystem::path(line.substr(second + 1)).relative_path();
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    if (line.starts_with("0::")) groups.push_back({root / "sys/fs/cgroup", path, "memory.max"});
    for (std::string name; std::getline(controllers, name, ',');) {
      if (name == "memory") groups.push_back({root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes"});
    }
  }
  return groups;
}

}  // namespace

int64_t host_limit_bytes(const std::filesystem::path& root) {
  int64_t limit = machine_bytes(root);
  for (const ControlGroup& group : control_groups(root)) {
    // In a container the path may be that of the host, which is not seen here; the container's own group is the mount.
    auto place = group.mount;
    limit = std::min(limit, limit_in(place / group.limit_file));
    for (const auto& name : group.path) {
      place /= name;
      limit = std::min(limit, limit_in(place / group.limit_file));
    }
  }
  return limit;
}

int64_t host_limit_bytes() {
  return host_limit_bytes("/");
}

}  // namespace vlmtrain::memory
