#pragma once

#include "vlmtrain/engine/optimizer/saved_state.h"
