#include "vlmtrain/io/torch_file.h"

#include <fmt/ranges.h>

#include <array>
#include <set>
#include <string>
#include <utility>

#include "io/checkpoint/torch_archive.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {

namespace {

using Kind = PickleValue::Kind;

// Keys under which training scripts commonly save a state_dict.
constexpr std::array<std::string_view, 3> kStateDictKeys{"model", "state_dict", "model_state_dict"};

/// Returns the value of `key` in a dict, or nullptr. Of equal keys, the last one counts, as in
/// Python. Returns nullptr for values that are not a dict.
const PickleValue* find_dict_value(const PickleValue& dict, std::string_view key) {
  for (size_t i = dict.items.size(); dict.kind == Kind::kDict && i > 0; i -= 2) {
    if (dict.items[i - 2]->kind == Kind::kString && dict.items[i - 2]->text == key) return dict.items[i - 1];
  }
  return nullptr;
}

/// Returns true for a dict that maps at least one string to a tensor.
bool is_tensor_dict(const PickleValue* value) {
  if (value == nullptr || value->kind != Kind::kDict) return false;
  for (size_t i = 0; i < value->items.size(); i += 2) {
    if (value->items[i]->kind == Kind::kString && value->items[i + 1]->kind == Kind::kTensor) return true;
  }
  return false;
}

/// Returns the state_dict: the first of kStateDictKeys with tensors, else the top-level dict.
/// Throws data_error that names `source` if there is none.
const PickleValue& find_state_dict(const PickleValue& content, const std::string& source) {
  for (const std::string_view key : kStateDictKeys) {
    const PickleValue* const state_dict = find_dict_value(content, key);
    if (is_tensor_dict(state_dict)) return *state_dict;
  }
  if (is_tensor_dict(&content)) return content;
  for (const PickleValue* const value :
       {&content, find_dict_value(content, kStateDictKeys[0]), find_dict_value(content, kStateDictKeys[1])}) {
    if (value == nullptr || value->kind != Kind::kOpaque) continue;
    throw data_error(
        "{}: contains an object of the Python class {}, whose tensors cannot be read: save its state_dict() in Python, "
        "as safetensors",
        source, make_excerpt(value->text));
  }
  throw data_error(
      "{}: has no dict of names to tensors, neither at the top level nor under {}: save the model's state_dict() in "
      "Python, as safetensors",
      source, fmt::join(kStateDictKeys, ", "));
}

NamedTensors collect_tensors(const PickleValue& state_dict, const std::string& source) {
  NamedTensors tensors;
  std::set<std::string_view> names;
  for (size_t i = 0; i < state_dict.items.size(); i += 2) {
    const PickleValue& name = *state_dict.items[i];
    const PickleValue& value = *state_dict.items[i + 1];
    if (value.kind == Kind::kOpaque) {
      throw data_error("{}: {} needs Python's {}: convert the file to safetensors in Python, or remove the entry",
                       source, make_excerpt(name.text), make_excerpt(value.text));
    }
    if (value.kind != Kind::kTensor) continue;
    if (name.kind != Kind::kString || !names.insert(name.text).second) {
      throw data_error("{}: a tensor's name {} occurs twice or is not a string; write the file again", source,
                       make_excerpt(name.text));
    }
    tensors.emplace_back(name.text, value.tensor);
  }
  return tensors;
}

}  // namespace

NamedTensors read_torch_file(const std::filesystem::path& path) {
  TorchArchive archive(path);
  const std::string pickle_content = archive.read_pickle();
  const Unpickler unpickler(pickle_content, path.string(), archive);
  return collect_tensors(find_state_dict(unpickler.result(), path.string()), path.string());
}

}  // namespace vlmtrain::io
