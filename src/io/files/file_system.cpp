#include "io/files/file_system.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include "vlmtrain/base/process.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::io {

namespace {

/// Returns the space that this user may fill, or nothing if the file system does not report it. The
/// superuser may also use the reserved blocks.
std::optional<int64_t> get_free_disk_bytes(const std::filesystem::path& folder) {
  struct statvfs status {};
  if (statvfs(folder.c_str(), &status) != 0) return std::nullopt;
  const auto free_blocks = geteuid() == 0 ? status.f_bfree : status.f_bavail;
  return static_cast<int64_t>(free_blocks) * static_cast<int64_t>(status.f_frsize);
}

/// Returns false if the file system limits the number of files and the limit is reached.
bool has_free_inodes(const std::filesystem::path& folder) {
  struct statvfs status {};
  return statvfs(folder.c_str(), &status) != 0 || status.f_files == 0 || status.f_ffree > 0;
}

/// Replaces temporary names in `path` by the final names that users know, for messages.
std::filesystem::path replace_temp_names(const std::filesystem::path& path) {
  std::filesystem::path destination_path;
  for (const auto& component : path) {
    const auto temp_path = parse_temp_path(component);
    destination_path /= temp_path ? temp_path->destination_path : component;
  }
  return destination_path;
}

/// Returns the first part of a message: the final name of `target_path`, and the reason.
std::string make_write_problem(const std::filesystem::path& target_path, int error) {
  return fmt::format("{}: cannot be written ({})", replace_temp_names(target_path).string(),
                     std::generic_category().message(error));
}

}  // namespace

UserError make_read_error(const std::filesystem::path& path, int error) {
  const std::string problem =
      fmt::format("{}: cannot be read ({})", path.string(), std::generic_category().message(error));
  // The process lacks resources, and the file may be valid: not a data_error.
  if (error == ENOMEM || error == EMFILE || error == ENFILE) {
    return run_error("{}; raise the limits of the process (ulimit -v, ulimit -n), or free memory and open files",
                     problem);
  }
  const auto hint = [&]() -> std::string {
    if (error != ENOENT) return "check the path and its permissions";
    if (path.string().starts_with("~")) return "the shell expands ~ only at the start of a word; write the full path";
    if (path.extension().empty() && is_hub_model_id(path.string())) {
      return fmt::format("if it is a data set on the Hugging Face Hub, write hf://datasets/{}", path.string());
    }
    return "check the path and its permissions";
  };
  return data_error("{}; {}", problem, hint());
}

std::filesystem::path get_parent_folder(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

UserError make_write_error(const std::filesystem::path& target_path, int error, int64_t requested_bytes) {
  const std::string problem = make_write_problem(target_path, error);
  const std::string folder = get_parent_folder(replace_temp_names(target_path)).string();
  constexpr const char* kChooseFolder = "choose a folder that you can write to";
  switch (error) {
    case ENOSPC:
      if (!has_free_inodes(get_parent_folder(target_path))) {
        return run_error("{}, because the disk has no free inodes; remove files in {}, or write to another disk",
                         problem, folder);
      }
      return run_error(
          "{}, because it needs {} bytes and {} bytes are free in {}; free space there, or write to another disk",
          problem, requested_bytes, get_free_disk_bytes(get_parent_folder(target_path)).value_or(0), folder);
    case EDQUOT:
      return run_error(
          "{}, because it needs {} bytes; remove files that count toward your quota in {}, or write to another disk",
          problem, requested_bytes, folder);
    case EFBIG:
      return run_error(
          "{}, because it needs {} bytes; raise the file size limit (ulimit -f), or write to a file system that "
          "supports larger files",
          problem, requested_bytes);
    case ENOENT:
      // The folder may exist in a file system without files of the user, such as /proc.
      if (std::error_code ignored_error; std::filesystem::is_directory(folder, ignored_error)) {
        return run_error("{}; {}", problem, kChooseFolder);
      }
      return run_error("{}; create the folder {} first", problem, folder);
    case ENOTDIR:
      return run_error("{}, because {} contains a file in place of a folder; move it away", problem, folder);
    case EMFILE:
    case ENFILE:
      return run_error("{}; raise the limit on open files (ulimit -n)", problem);
    case EACCES:
    case EPERM:
    case EROFS:
      return run_error("{}; {}", problem, kChooseFolder);
    default:
      return run_error("{}; check the path and the disk", problem);
  }
}

void check_free_space(const std::filesystem::path& folder, int64_t needed_bytes) {
  const auto free_bytes = get_free_disk_bytes(folder);
  if (!free_bytes || *free_bytes >= needed_bytes) return;
  throw run_error(
      "{}, because it needs {} bytes and {} bytes are free, {} too few; free space, or write to another disk",
      make_write_problem(folder, ENOSPC), needed_bytes, *free_bytes, needed_bytes - *free_bytes);
}

void sync_to_disk(const std::filesystem::path& path, const std::filesystem::path& reported_path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw make_write_error(reported_path, errno, 0);
  }
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  // Some file systems return EINVAL for folders, which they cannot flush.
  if (error != 0 && error != EINVAL) {
    throw make_write_error(reported_path, error, 0);
  }
}

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
