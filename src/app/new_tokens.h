#pragma once

#include <cstdint>
#include <functional>

namespace vlmtrain::app {

/// Of an answer: more than any model has positions for.
inline constexpr int64_t kMaxNewTokens = 10'000'000;

/// Does what answers with up to `max_new_tokens` new tokens. Where memory runs out for them, a UserError (kDoesNotFit)
/// names
/// --max-new-tokens.
void generate_or_explain_oom(int64_t max_new_tokens, const std::function<void()>& generate);

}  // namespace vlmtrain::app
