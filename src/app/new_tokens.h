#pragma once

#include <cstdint>
#include <functional>

namespace vlmtrain::app {

/// Of an answer: more than any model has positions for.
inline constexpr int64_t kMostNewTokens = 10'000'000;

/// Does what answers with up to `most` new tokens. Where memory runs out for them, a UserError (kDoesNotFit) names
/// --max-new-tokens.
void with_new_tokens(int64_t most, const std::function<void()>& answer);

}  // namespace vlmtrain::app
