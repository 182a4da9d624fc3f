#include "vlmtrain/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>
#include <string>
#include <utility>

#include "vlmtrain/base/text_format.h"

namespace vlmtrain {

namespace {

/// A formatter that escapes the log message, which may contain untrusted names.
class PrintableMessageFormatter final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = to_printable_message({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }

  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<PrintableMessageFormatter>();
  }
};

void install_logger(const spdlog::sink_ptr& sink, spdlog::level::level_enum level) {
  auto logger = std::make_shared<spdlog::logger>("vlmtrain", sink);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PrintableMessageFormatter>('*').set_pattern("%H:%M:%S %^%l%$ %*");
  logger->set_formatter(std::move(formatter));
  logger->set_level(level);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace

void init_logging(bool quiet) {
  install_logger(std::make_shared<spdlog::sinks::stderr_color_sink_mt>(),
                 quiet ? spdlog::level::warn : spdlog::level::info);
}

void log_to_file(const std::filesystem::path& file) {
  install_logger(std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string(), /*truncate=*/false),
                 spdlog::level::info);
}

}  // namespace vlmtrain
