#include "vlmtrain/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace vlmtrain {

void start_log(bool quiet) {
  auto logger = std::make_shared<spdlog::logger>("vlmtrain", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%H:%M:%S %^%l%$ %v");
  logger->set_level(quiet ? spdlog::level::warn : spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace vlmtrain
