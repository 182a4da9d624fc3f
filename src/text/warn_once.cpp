#include "text/warn_once.h"

#include <mutex>
#include <set>

#include "vlmtrain/base/log.h"

namespace vlmtrain::text {

void warn_once(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> logged_messages;
  const std::lock_guard lock(mutex);
  if (logged_messages.insert(message).second) spdlog::warn("{}", message);
}

}  // namespace vlmtrain::text
