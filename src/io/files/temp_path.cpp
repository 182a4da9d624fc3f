#include "io/files/temp_path.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>

#include "io/files/file_error.h"
#include "vlmtrain/base/process.h"

namespace vlmtrain::io {

namespace {

// Returns the host name with '-' in place of other characters than letters and digits, so that it
// has no dot, and the inode of the pid namespace.
std::string make_machine_id() {
  std::string name = get_host_name();
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  }
  struct stat process_namespace {};
  if (stat("/proc/self/ns/pid", &process_namespace) == 0) {
    name += fmt::format("-{:x}", process_namespace.st_ino);
  }
  return name;
}

// Fields of /proc/<pid>/stat (proc(5)).
struct ProcessStatus {
  bool has_exited = false;   // state Z or X; a container's first process may never wait for its children
  uint64_t start_ticks = 0;  // start in clock ticks after boot
};

// Reads the status of a process. The second field, a name in parentheses, may contain any
// character. The third field is the state, and the 22nd is the start time.
std::optional<ProcessStatus> read_process_status(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream field_stream(text.substr(name_end + 1));
  char state = 0;
  field_stream >> state;
  std::string skipped_field;
  for (int field = 4; field < 22; ++field) {
    field_stream >> skipped_field;
  }
  ProcessStatus status{.has_exited = state == 'Z' || state == 'X'};
  return field_stream >> status.start_ticks ? std::optional(status) : std::nullopt;
}

std::string_view to_temp_path_suffix(TempPathKind kind) {
  switch (kind) {
    case TempPathKind::kNew:
      return "vlmtrain-new";
    case TempPathKind::kBackup:
      return "vlmtrain-old";
    case TempPathKind::kRemoving:
      break;
  }
  return "vlmtrain-gone";
}

std::optional<TempPathKind> parse_temp_path_kind(std::string_view suffix) {
  for (const TempPathKind kind : {TempPathKind::kNew, TempPathKind::kBackup, TempPathKind::kRemoving}) {
    if (suffix == to_temp_path_suffix(kind)) return kind;
  }
  return std::nullopt;
}

// Removes the last dot of `text` and the field after it, and returns that field, or "" without a
// dot.
std::string_view pop_last_field(std::string_view& text) {
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) {
    return {};
  }
  const std::string_view field = text.substr(dot + 1);
  text = text.substr(0, dot);
  return field;
}

template <class Number>
std::optional<Number> parse_unsigned(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_complete = error == std::errc() && end == text.data() + text.size();
  return is_complete && !text.starts_with('-') ? std::optional(number) : std::nullopt;
}

}  // namespace

const std::string& get_machine_id() {
  static const std::string name = make_machine_id();
  return name;
}

std::filesystem::path make_temp_path(const std::filesystem::path& destination_path, TempPathKind kind) {
  static std::atomic<uint64_t> number{0};
  const pid_t pid = getpid();
  const uint64_t start_ticks = read_process_status(pid).value_or(ProcessStatus{}).start_ticks;
  return destination_path.parent_path() / fmt::format(".{}.{}.{}.{}.{}.{}", destination_path.filename().string(),
                                                      to_temp_path_suffix(kind), get_machine_id(), pid, start_ticks,
                                                      number++);
}

std::optional<TempPath> parse_temp_path(const std::filesystem::path& path) {
  const std::string file_name = path.filename().string();
  std::string_view remaining = file_name;
  const std::optional<uint64_t> number = parse_unsigned<uint64_t>(pop_last_field(remaining));
  const std::optional<uint64_t> start_ticks = parse_unsigned<uint64_t>(pop_last_field(remaining));
  const std::optional<pid_t> pid = parse_unsigned<pid_t>(pop_last_field(remaining));
  const std::string_view machine_id = pop_last_field(remaining);
  const std::optional<TempPathKind> kind = parse_temp_path_kind(pop_last_field(remaining));
  const bool has_dot_prefix = kind && remaining.starts_with('.') && remaining.size() > 1;
  if (!number || !start_ticks || !pid || machine_id.empty() || !has_dot_prefix) {
    return std::nullopt;
  }
  return TempPath{.path = path,
                  .destination_path = path.parent_path() / remaining.substr(1),
                  .kind = *kind,
                  .machine_id = std::string(machine_id),
                  .pid = *pid,
                  .start_ticks = *start_ticks};
}

bool is_writer_alive(const TempPath& temp) {
  if (kill(temp.pid, 0) != 0 && errno == ESRCH) {
    return false;
  }
  const std::optional<ProcessStatus> status = read_process_status(temp.pid);
  return !status || (!status->has_exited && status->start_ticks == temp.start_ticks);
}

bool try_exchange_paths(const std::filesystem::path& first, const std::filesystem::path& second) {
  if (renameat2(AT_FDCWD, first.c_str(), AT_FDCWD, second.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) {
    return false;
  }
  throw make_write_error(second, errno, 0);
}

std::filesystem::path move_to_backup(const std::filesystem::path& destination_path) {
  std::filesystem::path backup_path = make_temp_path(destination_path, TempPathKind::kBackup);
  if (rename(destination_path.c_str(), backup_path.c_str()) != 0) {
    throw make_write_error(destination_path, errno, 0);
  }
  return backup_path;
}

std::filesystem::path replace_folder_in_two_steps(const std::filesystem::path& new_folder,
                                                  const std::filesystem::path& destination_path) {
  std::filesystem::path backup_path = move_to_backup(destination_path);
  if (rename(new_folder.c_str(), destination_path.c_str()) != 0) {
    const int error = errno;
    std::error_code ignored_error;
    std::filesystem::rename(backup_path, destination_path, ignored_error);
    throw make_write_error(destination_path, error, 0);
  }
  return backup_path;
}

TempPathRegistry& get_temp_path_registry() {
  static auto* const registry = new TempPathRegistry;
  return *registry;
}

void register_temp_path(const std::filesystem::path& path, const std::function<void()>& create) {
  auto& [mutex, paths] = get_temp_path_registry();
  const std::lock_guard lock(mutex);
  paths.insert(path);
  create();
}

void unregister_temp_path(const std::filesystem::path& path) {
  auto& [mutex, paths] = get_temp_path_registry();
  const std::lock_guard lock(mutex);
  paths.erase(path);
}

}  // namespace vlmtrain::io
