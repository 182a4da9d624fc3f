#pragma once

#include "vlmtrain/engine/optimizer/loss_scale.h"
