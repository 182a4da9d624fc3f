#include <memory>

#include "app/command.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

Action declare_options(CLI::App& command) {
  const auto markdown = std::make_shared<bool>(false);
  command.add_flag("--markdown", *markdown, "with types, checks and meaning, as docs/config.md");
  return [markdown] {
    train::Config config;
    const OptionTable options = train::declare(config);
    fmt::print("{}", *markdown ? options.to_markdown() : options.to_yaml());
    return ExitCode::kDone;
  };
}

}  // namespace vlmtrain::app
