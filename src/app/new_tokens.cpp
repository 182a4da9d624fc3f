#include "app/new_tokens.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/shortage.h"

namespace vlmtrain::app {

void with_new_tokens(int64_t most, const std::function<void()>& answer) {
  try {
    answer();
  } catch (const std::exception& error) {
    const auto shortage = memory::shortage_in(error);
    if (!shortage) throw;
    throw UserError(
        ExitCode::kDoesNotFit,
        fmt::format("{} is full: keys and values of a prompt and an answer of up to {} tokens (--max-new-tokens) are "
                    "kept there; lower --max-new-tokens, or give fewer or smaller images",
                    memory::name_of(shortage->of), most));
  }
}

}  // namespace vlmtrain::app
