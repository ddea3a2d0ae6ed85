"""Subscribes to everything under a prefix, says "ready", and prints so many messages, one "topic<TAB>payload" a line."""

import sys
import threading

import paho.mqtt.client as mqtt

port, version, qos, prefix, wanted = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
protocol = mqtt.MQTTv5 if version == "5" else mqtt.MQTTv311
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"paho-sub-{version}-{qos}", protocol=protocol)
done = threading.Event()
received = []


def on_message(_client, _data, message):
    received.append(f"{message.topic}\t{message.payload.decode()}")
    if len(received) == wanted:
        done.set()


def on_subscribe(*_):
    print("ready", flush=True)


client.on_message = on_message
client.on_subscribe = on_subscribe
client.connect("127.0.0.1", port, keepalive=30)
client.subscribe(f"{prefix}#", qos)
client.loop_start()
complete = done.wait(120)
client.disconnect()
client.loop_stop()
print("\n".join(received))
sys.exit(0 if complete else f"only {len(received)} of {wanted} came")
