#include "memory/host_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/control_groups.h"

namespace vlmtrain::memory {

namespace {

/// The number behind `key` in a file of lines like `MemTotal:  1000 kB` or `inactive_file 1000`.
std::optional<int64_t> number_behind(const std::filesystem::path& file, std::string_view key) {
  std::ifstream stream(file);
  std::string word;
  int64_t number = 0;
  while (stream >> word) {
    if (word == key && stream >> number) return number;
    stream.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

std::optional<int64_t> meminfo_bytes(const std::filesystem::path& root, std::string_view key) {
  constexpr int64_t kKibibyte = 1024;
  const auto kibibytes = number_behind(root / "proc/meminfo", key);
  return kibibytes ? std::optional{*kibibytes * kKibibyte} : std::nullopt;
}

/// A number of bytes; `max`, and what cannot be read, is no limit.
int64_t limit_in(const std::filesystem::path& file) {
  int64_t bytes = 0;
  std::ifstream stream(file);
  return stream >> bytes ? bytes : kNoHostLimit;
}

int64_t number_in(const std::filesystem::path& file) {
  int64_t number = 0;
  std::ifstream stream(file);
  stream >> number;
  return stream ? number : 0;
}

/// What the files of a control group's folder are called.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive_cache;  ///< keys of memory.stat: caches of files, with those of groups below
  const char* active_cache;
};

constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                               "total_active_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file", "active_file"};

/// A group that has a limit, and what is left below it.
struct GroupLimit {
  int64_t limit_bytes;
  int64_t left_bytes;
  std::filesystem::path file;
};

std::vector<GroupLimit> group_limits(const std::filesystem::path& root) {
  std::vector<GroupLimit> limits;
  for (const ControlGroupFolder& group : control_groups(root, "memory")) {
    const GroupFiles& files = group.unified ? kVersion2 : kVersion1;
    const int64_t limit = limit_in(group.path / files.limit);
    if (limit == kNoHostLimit) continue;
    const int64_t cached = number_behind(group.path / "memory.stat", files.inactive_cache).value_or(0) +
                           number_behind(group.path / "memory.stat", files.active_cache).value_or(0);
    const int64_t used = number_in(group.path / files.usage) - cached;
    limits.push_back({limit, limit - std::clamp<int64_t>(used, 0, limit), group.path / files.limit});
  }
  return limits;
}

/// Of this process.
struct Pages {
  int64_t address_space_bytes = 0;
  int64_t own_bytes = 0;  ///< resident, and of no file
  int64_t data_bytes = 0;
};

Pages pages_of_process(const std::filesystem::path& root) {
  // man proc: size resident shared text lib data dt, in pages.
  std::ifstream file(root / "proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0, text = 0, library = 0, data = 0;
  file >> size >> resident >> shared >> text >> library >> data;
  const int64_t page = sysconf(_SC_PAGESIZE);
  return {size * page, std::max<int64_t>(0, resident - shared) * page, data * page};
}

int64_t soft_limit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return kNoHostLimit;
  const bool is_limit = limit.rlim_cur != RLIM_INFINITY && std::in_range<int64_t>(limit.rlim_cur);
  return is_limit ? static_cast<int64_t>(limit.rlim_cur) : kNoHostLimit;
}

}  // namespace

int64_t host_limit_bytes(const std::filesystem::path& root) {
  int64_t limit = meminfo_bytes(root, "MemTotal:").value_or(kNoHostLimit);
  for (const auto& group : group_limits(root)) limit = std::min(limit, group.limit_bytes);
  return limit;
}

int64_t host_limit_bytes() {
  return host_limit_bytes("/");
}

HostRoom host_room(const std::filesystem::path& root, const AddressLimits& limits) {
  const Pages own = pages_of_process(root);
  HostRoom room{.bytes = kNoHostLimit, .bound = "nothing"};
  const auto bound = [&](int64_t left, const std::string& by) {
    const int64_t bytes = std::max<int64_t>(0, left) + own.own_bytes;
    if (bytes < room.bytes) room = {bytes, by};
  };
  if (const auto free = meminfo_bytes(root, "MemAvailable:")) bound(*free, "the machine's free memory");
  for (const auto& group : group_limits(root)) {
    bound(group.left_bytes, "the control group's limit " + group.file.string());
  }
  if (limits.address_space != kNoHostLimit) {
    bound(limits.address_space - own.address_space_bytes, "the limit of address space, ulimit -v");
  }
  if (limits.data != kNoHostLimit) bound(limits.data - own.data_bytes, "the limit of data, ulimit -d");
  return room;
}

HostRoom host_room() {
  return host_room("/", {.address_space = soft_limit(RLIMIT_AS), .data = soft_limit(RLIMIT_DATA)});
}

}  // namespace vlmtrain::memory
