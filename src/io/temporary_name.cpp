#include "io/temporary_name.h"

#include <signal.h>
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

#include "vlmtrain/base/host_name.h"

namespace vlmtrain::io {
namespace {

std::string machine_name() {
  std::string name = host_name();
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  }
  struct stat process_namespace {};
  if (stat("/proc/self/ns/pid", &process_namespace) == 0) {
    name += fmt::format("-{:x}", process_namespace.st_ino);
  }
  return name;
}

// What /proc/<pid>/stat says, see proc(5).
struct ProcessStatus {
  bool has_ended = false;   // and nobody has asked what came of it, as where a container's first process never does
  uint64_t start_time = 0;  // in ticks since the machine's start
};

// The second field, a name in parentheses, may hold anything; the third is the state, the 22nd the start time.
std::optional<ProcessStatus> status_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(text.substr(name_end + 1));
  char state = 0;
  fields >> state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) {
    fields >> skipped;
  }
  ProcessStatus status{.has_ended = state == 'Z' || state == 'X'};
  return fields >> status.start_time ? std::optional(status) : std::nullopt;
}

std::string_view word_of(TemporaryKind kind) {
  switch (kind) {
    case TemporaryKind::kNew:
      return "vlmtrain-new";
    case TemporaryKind::kSetAside:
      return "vlmtrain-old";
    case TemporaryKind::kGone:
      break;
  }
  return "vlmtrain-gone";
}

std::optional<TemporaryKind> kind_of(std::string_view word) {
  for (const TemporaryKind kind : {TemporaryKind::kNew, TemporaryKind::kSetAside, TemporaryKind::kGone}) {
    if (word == word_of(kind)) return kind;
  }
  return std::nullopt;
}

// Cuts what follows the last dot, and the dot, off `text`; empty where there is none.
std::string_view cut_last_field(std::string_view& text) {
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) {
    return {};
  }
  const std::string_view field = text.substr(dot + 1);
  text = text.substr(0, dot);
  return field;
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole && !text.starts_with('-') ? std::optional(number) : std::nullopt;
}

}  // namespace

const std::string& this_machine() {
  static const std::string name = machine_name();
  return name;
}

std::filesystem::path temporary_path(const std::filesystem::path& final_path, TemporaryKind kind) {
  static std::atomic<uint64_t> number{0};
  const pid_t process = getpid();
  const uint64_t start_time = status_of(process).value_or(ProcessStatus{}).start_time;
  return final_path.parent_path() / fmt::format(".{}.{}.{}.{}.{}.{}", final_path.filename().string(), word_of(kind),
                                                this_machine(), process, start_time, number++);
}

std::optional<Temporary> parse_temporary(const std::filesystem::path& path) {
  const std::string file_name = path.filename().string();
  std::string_view rest = file_name;
  const std::optional<uint64_t> number = number_in<uint64_t>(cut_last_field(rest));
  const std::optional<uint64_t> start_time = number_in<uint64_t>(cut_last_field(rest));
  const std::optional<pid_t> process = number_in<pid_t>(cut_last_field(rest));
  const std::string_view machine = cut_last_field(rest);
  const std::optional<TemporaryKind> kind = kind_of(cut_last_field(rest));
  const bool is_ours = kind && rest.starts_with('.') && rest.size() > 1;
  if (!number || !start_time || !process || machine.empty() || !is_ours) {
    return std::nullopt;
  }
  return Temporary{.path = path,
                   .final_path = path.parent_path() / rest.substr(1),
                   .kind = *kind,
                   .machine = std::string(machine),
                   .process = *process,
                   .start_time = *start_time};
}

bool writer_is_alive(const Temporary& temporary) {
  if (kill(temporary.process, 0) != 0 && errno == ESRCH) {
    return false;
  }
  const std::optional<ProcessStatus> status = status_of(temporary.process);
  return !status || (!status->has_ended && status->start_time == temporary.start_time);
}

}  // namespace vlmtrain::io
