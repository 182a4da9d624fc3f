#pragma once

#include <string>

#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::train {

/// The trained parts of a model, for people: "the vision tower and the projector".
std::string describe_trained_parts(const nn::ParameterStore& parameters);

/// Whether only parts are trained that media alone lead to: nothing is learned from text.
bool trains_only_media_parts(const nn::ParameterStore& parameters);

}  // namespace vlmtrain::train
