"""Publishes the readings given on standard input, one "topic<TAB>payload" a line, and waits for the last acknowledgement."""

import sys

import paho.mqtt.client as mqtt

port, version, qos = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
protocol = mqtt.MQTTv5 if version == "5" else mqtt.MQTTv311
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"paho-{version}-{qos}", protocol=protocol)
client.max_inflight_messages_set(20)
client.connect("127.0.0.1", port, keepalive=30)
client.loop_start()
sent = []
for line in sys.stdin:
    topic, payload = line.rstrip("\n").split("\t")
    sent.append(client.publish(topic, payload, qos))
for message in sent:
    message.wait_for_publish(60)
    if not message.is_published():
        sys.exit("not acknowledged within a minute")
client.disconnect()
client.loop_stop()
print(len(sent))
