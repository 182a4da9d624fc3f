#include "models/checkpoints/attention_dropout.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::models {

void refuse_attention_dropout(const nlohmann::json& config, const std::string& source) {
  const auto it = config.find("attention_dropout");
  if (it == config.end() || it->is_null() || (it->is_number() && it->get<double>() == 0)) return;
  throw data_error("{}: attention_dropout is {}: dropout of attention is not supported; set it to 0.0", source,
                   io::make_json_excerpt(*it));
}

}  // namespace vlmtrain::models
