#include "app/new_tokens.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/shortage.h"

namespace vlmtrain::app {

void generate_or_explain_oom(int64_t max_new_tokens, const std::function<void()>& generate) {
  try {
    generate();
  } catch (const std::exception& error) {
    const auto out_of_memory = memory::detect_out_of_memory(error);
    if (!out_of_memory) throw;
    throw UserError(
        ExitCode::kDoesNotFit,
        fmt::format("{} is full: keys and values of a prompt and an answer of up to {} tokens (--max-new-tokens) are "
                    "kept there; lower --max-new-tokens, or give fewer or smaller images",
                    memory::to_string(out_of_memory->kind), max_new_tokens));
  }
}

}  // namespace vlmtrain::app
