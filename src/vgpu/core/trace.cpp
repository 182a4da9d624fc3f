#include "vgpu/core/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "vgpu/core/immortal.h"
#include "vgpu/core/report.h"

namespace vlmtrain::vgpu {

namespace {

constexpr const char* kTraceFile = "VLMTRAIN_VGPU_TRACE";
constexpr int kTracePermissions = 0644;

}  // namespace

Trace::Trace() {
  const char* const path = std::getenv(kTraceFile);
  if (path == nullptr || *path == '\0') return;
  file_ = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kTracePermissions);
  if (file_ < 0) report({kTraceFile, "=", path, " cannot be written: ", std::strerror(errno), ": no trace"});
}

void Trace::add(std::initializer_list<std::string_view> pieces) {
  if (!is_enabled()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  line_.clear();
  for (const auto piece : pieces) line_.append(line_.empty() ? "" : " ").append(piece);
  line_.push_back('\n');
  if (write(file_, line_.data(), line_.size()) != static_cast<ssize_t>(line_.size())) {
    report({kTraceFile, ": a line could not be written: ", std::strerror(errno), ": the trace ends"});
    close(file_);
    file_ = -1;
  }
}

Trace& trace() {
  return leaky_singleton<Trace>();
}

}  // namespace vlmtrain::vgpu
