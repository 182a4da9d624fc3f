#pragma once

#include "vlmtrain/engine/optimizer/adamw.h"
