//! Object sets, dnodes, ZAP, SA.
