#pragma once

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>

namespace vlmtrain::text {

inline std::string get_data_path(const std::string& name) {
  return VLMTRAIN_SOURCE_DIR "/tests/text/data/" + name;
}

inline nlohmann::json read_json_data(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(get_data_path(name)));
}

}  // namespace vlmtrain::text
