#include "models/checkpoints/attention_dropout.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::models {

void refuse_attention_dropout(const nlohmann::json& config, const std::string& source) {
  const auto found = config.find("attention_dropout");
  if (found == config.end() || found->is_null() || (found->is_number() && found->get<double>() == 0)) return;
  throw data_error("{}: attention_dropout is {}: dropout of attention is not supported; set it to 0.0", source,
                   io::json_excerpt(*found));
}

}  // namespace vlmtrain::models
