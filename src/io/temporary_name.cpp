#include "io/temporary_name.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

namespace vlmtrain::io {
namespace {

std::string machine_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::string name;
  for (const char* c = host.data(); *c != '\0'; ++c) {
    name += std::isalnum(static_cast<unsigned char>(*c)) ? *c : '-';
  }
  struct stat process_namespace {};
  if (stat("/proc/self/ns/pid", &process_namespace) == 0) {
    name += fmt::format("-{:x}", process_namespace.st_ino);
  }
  return name;
}

// Field 22 of /proc/<pid>/stat, see proc(5); the second field, a name in parentheses, may hold anything.
std::optional<uint64_t> start_time_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) {
    fields >> skipped;
  }
  uint64_t ticks = 0;
  return fields >> ticks ? std::optional(ticks) : std::nullopt;
}

const char* word_of(TemporaryKind kind) {
  return kind == TemporaryKind::kNew ? "new" : "old";
}

}  // namespace

const std::string& this_machine() {
  static const std::string name = machine_name();
  return name;
}

std::filesystem::path temporary_path(const std::filesystem::path& final_path, TemporaryKind kind) {
  static std::atomic<uint64_t> number{0};
  const pid_t process = getpid();
  return final_path.parent_path() / fmt::format(".{}.vlmtrain-{}.{}.{}.{}.{}", final_path.filename().string(),
                                                word_of(kind), this_machine(), process,
                                                start_time_of(process).value_or(0), number++);
}

std::optional<Temporary> parse_temporary(const std::filesystem::path& path) {
  static const std::regex pattern(R"(\.(.+)\.vlmtrain-(new|old)\.([A-Za-z0-9-]+)\.(\d{1,9})\.(\d{1,19})\.\d+)");
  const std::string name = path.filename().string();
  std::smatch match;
  if (!std::regex_match(name, match, pattern)) {
    return std::nullopt;
  }
  return Temporary{.path = path,
                   .final_path = path.parent_path() / match[1].str(),
                   .kind = match[2] == "new" ? TemporaryKind::kNew : TemporaryKind::kSetAside,
                   .machine = match[3],
                   .process = std::stoi(match[4]),
                   .start_time = std::stoull(match[5])};
}

bool writer_is_alive(const Temporary& temporary) {
  if (kill(temporary.process, 0) != 0 && errno == ESRCH) {
    return false;
  }
  const std::optional<uint64_t> start_time = start_time_of(temporary.process);
  return !start_time || *start_time == temporary.start_time;
}

}  // namespace vlmtrain::io
